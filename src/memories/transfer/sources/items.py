"""A source's items (messages and drafts), and functions that parse their values.

`to_draft` makes drafts from CSV rows and JSON lines, whose fields have names that most programs
use.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from memories.errors import InvalidInput
from memories.guard import validate
from memories.models import DecayPolicy, Draft
from memories.read.turns import TurnDraft

_EARLIEST = datetime(1990, 1, 1, tzinfo=UTC)  # an earlier time is really a 0 or a count of days
_MICROSECONDS, _MILLISECONDS = 1e14, 1e11  # timestamps at least this large are in these units
# Characters that no store accepts: most control characters, and surrogates.
_UNSTORABLE = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)))
_EMBEDDED = re.compile(r"data:([\w.+-]{1,40}/[\w.+-]{1,80})[^,\s]{0,80};base64,[\w+/=-]{200,}")
_UNSTORABLE |= dict.fromkeys(range(0xD800, 0xE000))

TEXT_NAMES = ("content", "text", "memory", "note", "fact", "data", "value")
TIME_NAMES = ("created_at", "created", "timestamp", "date", "time", "ts")
_TAGS = ("agent", "personality", "project", "type", "kind", "category", "user", "user_id")
# The names of all fields that `to_draft` reads.
FIELD_NAMES = {*TEXT_NAMES, *TIME_NAMES, *_TAGS, "tags", "global", "decay", "decay_policy"}
_RENAMED = {"kind": "type", "category": "type", "user_id": "user"}


class SourceMessage(NamedTuple):
    """One message in a conversation.

    Attributes:
        conversation: The id of the conversation, which begins with the name of the source.
        turn: The message. Its `message_id` is the source's own id, so that a second import adds
            nothing. A message without `created_at` is dated just after the previous one.
        title: The title of the conversation.
        project: The project that the conversation is about.
        session: The id under which hooks store the conversation, if different.
    """

    conversation: str
    turn: TurnDraft
    title: str = ""
    project: str | None = None
    session: str = ""


# A `Draft` is a statement worth keeping. Its key, if any, is the id that the source gave it. If its
# text changes, the id stays the same, and the next import adds a new version.
Item = SourceMessage | Draft


def clean(text: object) -> str:
    """Return a text without unstorable characters; empty if the value isn't a string.

    Embedded files, such as images in base64, are replaced with their media type.
    """
    if not isinstance(text, str):
        return ""
    if ";base64," in text:
        text = _EMBEDDED.sub(r"[\1]", text)
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_UNSTORABLE).strip()


def one_line(text: object, longest: int = 256) -> str:
    """Return a text on one line, shortened; empty if the value isn't a string."""
    line = " ".join(clean(text).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def moment(*values: object) -> datetime | None:
    """Return the first value that is a time: an ISO 8601 string, or a Unix timestamp.

    The size of a number shows whether it counts seconds, milliseconds or microseconds. A time
    without a zone is assumed to be UTC.

    Returns:
        None if no value is a time in 1990 or later.
    """
    return next(filter(None, map(_parse_time, values)), None)


def _parse_time(value: object) -> datetime | None:
    try:
        if isinstance(value, str) and not value.replace(".", "", 1).isdigit():
            time = datetime.fromisoformat(value.strip())
        else:
            time = datetime.fromtimestamp(_to_seconds(value), UTC)
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError, OSError, TypeError):
        return None
    return time if time >= _EARLIEST else None


def _to_seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    number = float(value)
    if number >= _MICROSECONDS:
        return number / 1e6
    return number / 1e3 if number >= _MILLISECONDS else number


def name_of(*parts: object) -> str:
    """Return an id derived from the content, for a message or conversation without an id."""
    text = "\x1f".join("" if part is None else str(part) for part in parts)
    return f"sha:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"


def parse_json(text: object) -> object:
    """Parse JSON stored as text, such as in a column of a table; None if it isn't JSON."""
    try:
        return json.loads(text) if isinstance(text, str | bytes) else None
    except (ValueError, RecursionError):
        return None


def parse_object(text: object) -> Mapping[str, Any]:
    """Parse a text as a JSON object; return an empty object for anything else."""
    return mapping(parse_json(text))


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a JSON object, else an empty object."""
    return value if isinstance(value, dict) else {}


def dicts(value: object) -> list[Mapping[str, object]]:
    """Return the objects in a JSON array; an empty list if the value isn't an array."""
    if not isinstance(value, list):
        return []
    return [part for part in value if isinstance(part, dict)]


def blocks_text(content: object) -> list[str]:
    """Return the texts of a message, whose content is a string or a list of blocks."""
    if isinstance(content, str):
        return [clean(content)]
    return [clean(block.get("text")) for block in dicts(content)]


def join_texts(texts: Iterable[str]) -> str:
    """Join a message's texts, with a blank line between them."""
    return "\n\n".join(filter(None, texts))


def strings(value: object) -> list[str]:
    """Return the strings in a JSON array; an empty list if the value isn't an array."""
    if not isinstance(value, list):
        return []
    return [part for part in value if isinstance(part, str)]


# --- fields


def to_draft(fields: Mapping[str, Any]) -> Draft | None:
    """Make a draft from the fields of a row or line; None if no field contains text.

    Args:
        fields: The values, keyed by name. The case of the names doesn't matter.
    """
    by_name = {str(name).strip().lower(): value for name, value in fields.items()}
    texts = [clean(by_name.get(name)) for name in TEXT_NAMES]
    text = next(filter(None, texts), "")
    if not text:
        return None
    decay = by_name.get("decay_policy") or by_name.get("decay")
    return Draft(
        text,
        tags=to_tags(by_name),
        created_at=moment(*map(by_name.get, TIME_NAMES)),
        decay=decay if decay in tuple(DecayPolicy) else None,
    )


def to_tags(by_name: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags in the fields of a row or line: fields with known names, and `tags`.

    `tags` is an object, or an array or a comma-separated list of words or `key=value` pairs.
    """
    tags: dict[str, str] = {}
    for name in _TAGS:
        add_tag(tags, _RENAMED.get(name, name), by_name.get(name))
    if str(by_name.get("global")).lower() in ("true", "1", "yes"):
        add_tag(tags, "global", "true")
    value = by_name.get("tags")
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return tags
    if isinstance(value, dict):
        for name, text in value.items():
            add_tag(tags, name, text)
        return tags
    words = value.split(",") if isinstance(value, str) else value
    for word in words if isinstance(words, list) else ():
        key, separator, text = str(word).partition("=")
        add_tag(tags, key, text if separator else "true")
    return tags


def make_tags(words: Iterable[object] = (), **values: object) -> dict[str, str]:
    """Return the valid tags among these; a word becomes a tag with the value `true`."""
    tags: dict[str, str] = {}
    for name, value in values.items():
        add_tag(tags, name, value)
    for word in words:
        add_tag(tags, word, "true")
    return tags


def add_tag(tags: dict[str, str], key: object, value: object) -> None:
    """Add a tag, unless it is invalid or empty, its key exists, or there are too many tags."""
    name = "-".join(str(key).split())
    text = one_line("" if value is None else str(value), validate.MAX_TAG_VALUE)
    if name in tags or not text or len(tags) >= validate.MAX_TAGS // 2:
        return
    try:
        tags |= validate.tags({name: text})
    except InvalidInput:
        return  # other programs allow keys that we don't
