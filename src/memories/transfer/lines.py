"""Writes records as the JSON lines of an export, and checks such lines. Opens no file.

The same records give the same lines. The first line is a header. The last line contains the number
of records and the SHA-256 of all previous lines; without it, a file truncated at the end of a line
would look complete. If the export was written with the user's key, the last line also proves who
wrote it.
"""

import base64
import binascii
import hashlib
import hmac
import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from memories.core.ids import ID_LENGTH, parse_id, storable
from memories.core.times import to_iso, to_stored_time
from memories.errors import InvalidInput
from memories.guard import validate
from memories.guard.validate import shown
from memories.stores.damage import find_import_problem, find_problem
from memories.stores.records import SEARCHED, Collection, Record, Ref, plain_number

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMAT, VERSION = "memories", 2
WITHOUT_LAST_LINE = 1  # the first version, in which an incomplete export can't be recognized
MAX_LINE_BYTES = 16_777_216
_REQUIRED = ("collection", "namespace", "group", "position", "text", "created_at")
_OPTIONAL = ("ended_at", "ended_by", "key", "session", "labels", "fields", "accesses", "vectors")
# Besides tags, labels contain the role, speaker and part of a turn, and any record's origin,
# review state, import and pin.
_MAX_LABELS = validate.MAX_TAGS + 12
_MAX_KEY = 2 * validate.MAX_KEY + 1  # a stored key also contains its project or conversation
_MAX_FIELDS = 100
_END = re.compile(r'\s*\{\s*"end"\s*:')
_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
SQLITE = b"SQLite format 3\0"  # the beginning of every SQLite database
_OTHER_FILES = (
    (b"PK\x03\x04", "a ZIP archive; unpack it first"),
    (b"PK\x05\x06", "a ZIP archive; unpack it first"),
    (b"\x1f\x8b", "a gzip file; unpack it first"),
    (b"BZh", "a bzip2 file; unpack it first"),
    (b"\xfd7zXZ\0", "an xz file; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd file; unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it first"),
    (b"Rar!", "a RAR archive; unpack it first"),
    (SQLITE, "a SQLite database; if it is a store of memories, use memory restore"),
    *((bytes((0x80, version)), "a Python pickle") for version in range(2, 6)),
    (b"%YAML", "a YAML document"),
    (b"%PDF", "a PDF document"),
    (b"\xff\xfe", "text that looks like UTF-16; save it as UTF-8"),
    (b"\xfe\xff", "text that looks like UTF-16; save it as UTF-8"),
)


def split_lines(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield an export's lines from its beginning.

    Args:
        stream: The export, which must be seekable.
        name: The name of the export, for messages.

    Raises:
        InvalidInput: A line is too long.
    """
    stream.seek(0)
    while line := stream.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise InvalidInput(
                f"{name} contains a line of more than {MAX_LINE_BYTES} bytes; it is not an export"
            )
        yield line


def refuse_other_files(start: bytes) -> None:
    """Reject data that begins like a different kind of file; nothing is ever unpacked or run.

    Raises:
        InvalidInput: The data is a different kind of file, which the message names.
    """
    description = "a tar archive; unpack it first" if start[257:262] == b"ustar" else ""
    for sign, other in _OTHER_FILES:
        if start.startswith(sign):
            description = other
    if description:
        raise InvalidInput(f"is not an export: it is {description}")


class Header(NamedTuple):
    """An export's first line.

    Attributes:
        model: The model of the vectors that follow; None if there are none.
        ends: Whether the export ends with a line that contains a count and a hash.
        backup: The description of a backup; None if it isn't one.
    """

    model: str | None
    ends: bool
    backup: Mapping[str, str] | None = None


class ExportTally:
    """Counts an export's records and hashes its lines; the last line has the count and the hash.

    Line ends and a byte-order mark are not hashed, since a transfer as text may change them.

    Attributes:
        records: The number of records.
    """

    def __init__(self, header: str) -> None:
        """Start with the first line."""
        self.records = 0
        self._hash = hashlib.sha256()
        self._add(header)

    def add(self, line: str) -> None:
        """Add a record's line, without its line end."""
        self.records += 1
        self._add(line)

    def last_line(self, key: bytes | None = None) -> str:
        """Return the last line; with a key, it proves who wrote the export."""
        shape = {"end": FORMAT, "records": self.records, "sha256": self._hash.hexdigest()}
        if key is not None:
            shape["proof"] = self._proof(key)
        return _dump(shape)

    def compare(self, line: str, key: bytes | None = None) -> bool:
        """Compare the lines read so far with the last line of their export.

        Returns:
            Whether the export was written with this key.

        Raises:
            InvalidInput: The last line does not match the lines before it.
        """
        shape = _object(line)
        if shape.get("end") != FORMAT or "records" not in shape or "sha256" not in shape:
            raise InvalidInput(f"is not the last line of an export, {self.last_line()}")
        if shape["records"] != self.records:
            raise InvalidInput(
                f"gives {shown(str(shape['records']))} as the number of records, but there are "
                f"{self.records}: the export is incomplete or was changed; use another copy"
            )
        if shape["sha256"] != self._hash.hexdigest():
            raise InvalidInput(
                "does not match the lines before it (SHA-256): the export was damaged or changed "
                "after it was written; use another copy or, if you edited this one, write "
                f'"version":{WITHOUT_LAST_LINE} in the first line and remove the last line'
            )
        if key is None:
            return False
        proof = str(shape.get("proof"))
        return hmac.compare_digest(proof.encode(errors="replace"), self._proof(key).encode())

    def _proof(self, key: bytes) -> str:
        """Return the HMAC-SHA256 of the hash and the number of records, for the last line."""
        message = f"{FORMAT} {self.records} {self._hash.hexdigest()}"
        return hmac.new(key, message.encode(), hashlib.sha256).hexdigest()

    def _add(self, line: str) -> None:
        self._hash.update(f"{line}\n".encode("utf-8", "surrogatepass"))


def header_line(model: str | None, backup: Mapping[str, str] | None = None) -> str:
    """Return an export's first line.

    Args:
        model: The model of the export's vectors; None if it has none.
        backup: The description of a backup.
    """
    shape: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    if model:
        shape["model"] = model
    if backup:
        shape["backup"] = backup
    return _dump(shape)


def read_header(line: str) -> Header:
    """Read an export's first line.

    Raises:
        InvalidInput: The line isn't the header of an export that this program can read.
    """
    shape = _object(line)
    if shape.get("format") != FORMAT:
        raise InvalidInput(
            f'is not the header of an export, {header_line(None)}; write one with "memory export"'
        )
    version = shape.get("version")
    if version not in (WITHOUT_LAST_LINE, VERSION):
        raise InvalidInput(
            f'has version "{shown(str(version))}", but this program reads only versions '
            f"{WITHOUT_LAST_LINE} and {VERSION}; upgrade memoriae"
        )
    model = None if shape.get("model") is None else _text(shape["model"], "model", validate.MAX_KEY)
    backup = None if "backup" not in shape else _mapping(shape["backup"], "backup", _MAX_FIELDS)
    return Header(model, version == VERSION, backup)


def is_last(line: str) -> bool:
    """Return whether a line is the last one of an export."""
    return bool(_END.match(line))


def to_line(record: Record, vectors: "NDArray[np.float32] | None" = None) -> str:
    """Return a record as a line without a line end; values that are None, empty or 0 are left out.

    Args:
        record: The record.
        vectors: Its vectors, of shape (windows, dimension), which are written without loss.
    """
    shape: dict[str, Any] = {
        "collection": str(record.ref.collection),
        "namespace": record.ref.namespace,
        "group": record.ref.group,
        "position": record.ref.position,
        "text": record.text,
        "created_at": to_iso(record.created_at),
    }
    if record.ended_at is not None:
        shape["ended_at"] = to_iso(record.ended_at)
    if record.ended_by is not None:
        shape["ended_by"] = record.ended_by
    if record.key is not None:
        shape["key"] = record.key
    if record.session is not None:
        shape["session"] = record.session
    if record.labels:
        shape["labels"] = dict(sorted(record.labels.items()))
    if record.fields:
        fields = sorted(record.fields.items())
        shape["fields"] = {name: plain_number(value) for name, value in fields}
    if record.accesses:
        shape["accesses"] = record.accesses
    if vectors is not None:
        shape["vectors"] = [base64.b64encode(row.astype("<f4")).decode() for row in vectors]
    return _dump(shape)


def content_hash(record: Record) -> int:
    """Return a 128-bit hash of a record, excluding its access count and suspicion marks."""
    fields = {name: value for name, value in record.fields.items() if name != "suspicious"}
    line = to_line(record._replace(accesses=0, fields=fields))
    data = line.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=16).digest())


def is_id(group: str) -> bool:
    """Return whether a group's name has the form of a memory's id."""
    return len(group) == ID_LENGTH and bool(_ID.fullmatch(group))


def read_line(line: str, *, own: bool = False) -> Record:
    """Read a record from a line, with its vectors if present.

    Args:
        line: The line, without its newline.
        own: Whether the line is from a backup, which may contain anything that was ever stored;
            see `damage.find_import_problem`.

    Raises:
        InvalidInput: The line isn't a record, or a value is invalid; the message says which.
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
    # The text is checked but not normalized, since it was stored in this form before.
    validate.content(shape["text"])
    record = Record(
        ref=_ref(shape),
        text=shape["text"],
        created_at=_time(shape["created_at"], "created_at"),
        labels=_labels(shape.get("labels", {})),
        fields=_fields(shape.get("fields", {})),
        accesses=_whole(shape.get("accesses", 0), "accesses"),
        **_optional_parts(shape),
    )
    problem = find_problem(record)
    if not problem and not own:
        problem = find_import_problem(record)
    if problem:
        raise InvalidInput(problem)
    return record


def _optional_parts(shape: Mapping[str, Any]) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    if "ended_at" in shape:
        parts["ended_at"] = _time(shape["ended_at"], "ended_at")
    if "ended_by" in shape:
        if "ended_at" not in shape:
            raise InvalidInput("has ended_by but no ended_at")
        parts["ended_by"] = _text(shape["ended_by"], "ended_by", validate.MAX_KEY)
    if "key" in shape:
        parts["key"] = _text(shape["key"], "key", _MAX_KEY)
    if "vectors" in shape:
        parts["vectors"] = _vectors(shape["vectors"])
    if "session" in shape:
        parts["session"] = _whole(shape["session"], "session")
    return parts


def _ref(shape: Mapping[str, Any]) -> Ref:
    if shape["collection"] not in SEARCHED:
        raise InvalidInput(
            f'has the collection "{shown(str(shape["collection"]))}"; use {" or ".join(SEARCHED)}'
        )
    collection = Collection(shape["collection"])
    namespace = shape["namespace"]
    name = validate.canonical_namespace(namespace)
    if name != namespace:
        raise InvalidInput(f'has the namespace "{shown(namespace)}"; write it as {name}')
    group = _text(shape["group"], "group", validate.MAX_KEY)
    position = _whole(shape["position"], "position")
    canonical = _canonical(group)
    if collection is Collection.MEMORY and canonical != group:
        raise InvalidInput(f'has the group "{shown(group)}"; write that id as {canonical}')
    if collection is Collection.MEMORY and position == 0:
        raise InvalidInput("has position 0; a memory's versions are numbered from 1")
    return Ref(collection, namespace, group, position)


def _canonical(group: str) -> str:
    """Return a memory's id in its stored form: a UUID in canonical form, other ids unchanged."""
    try:
        memory_id = parse_id(group)
    except InvalidInput:
        return group
    return memory_id if len(memory_id) == ID_LENGTH else group


def _labels(value: object) -> dict[str, str]:
    labels: dict[str, str] = {}
    for name, text in _mapping(value, "labels", _MAX_LABELS).items():
        key = _text(name, "label", validate.MAX_TAG_KEY)
        labels[key] = _text(text, f'label "{shown(key)}"', validate.MAX_TAG_VALUE, shortest=0)
    return labels


def _fields(value: object) -> dict[str, Any]:
    pairs = _mapping(value, "fields", _MAX_FIELDS)
    for name, field in pairs.items():
        _text(name, "field", validate.MAX_KEY)
        is_finite = not isinstance(field, float) or math.isfinite(field)
        if not isinstance(field, str | int | float) or not is_finite:
            raise InvalidInput(
                f'has the field "{shown(name)}" with a value that is not text, a number, true or '
                "false"
            )
    return dict(pairs)


def _mapping(value: object, name: str, max_pairs: int) -> Mapping[str, Any]:
    if type(value) is not dict or len(value) > max_pairs:
        raise InvalidInput(f"has {name} that are not an object of at most {max_pairs} pairs")
    return value


def _text(value: object, name: str, longest: int, *, shortest: int = 1) -> str:
    if not isinstance(value, str) or not shortest <= len(value) <= longest or not storable(value):
        raise InvalidInput(f"has a {name} that is not text of {shortest} to {longest} characters")
    return value


def _whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise InvalidInput(f"has a {name} that is not a whole number, 0 or more")
    return value


def _time(value: object, name: str) -> datetime:
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        raise InvalidInput(
            f'has the {name} "{shown(str(value))}", which is not an ISO 8601 time'
        ) from None
    return to_stored_time(moment, name)


def _vectors(value: object) -> "NDArray[np.float32]":
    import numpy as np

    try:
        if not isinstance(value, list):
            raise TypeError
        rows = [np.frombuffer(base64.b64decode(row, validate=True), dtype="<f4") for row in value]
        vectors: NDArray[np.float32] = np.stack(rows).astype(np.float32)
    except (TypeError, ValueError, binascii.Error):
        raise InvalidInput(
            "has vectors that are not a list of base64 strings with the same number of float32 "
            "values each"
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
