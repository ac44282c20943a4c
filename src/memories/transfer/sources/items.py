"""Items of a source: messages of conversations, drafts of memories, and the values in them.

Drafts are also made of fields with the names that most programs use, for CSV files and JSON lines.
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

_EARLIEST = datetime(1990, 1, 1, tzinfo=UTC)  # a zero or a count of days would be earlier
_MICROSECONDS, _MILLISECONDS = 1e14, 1e11  # numbers from here on count these since 1970
# Control characters except tab and line feed, and halves of characters, which no store keeps.
_UNSTORABLE = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)))
_EMBEDDED = re.compile(r"data:([\w.+-]{1,40}/[\w.+-]{1,80})[^,\s]{0,80};base64,[\w+/=-]{200,}")
_UNSTORABLE |= dict.fromkeys(range(0xD800, 0xE000))

TEXT_NAMES = ("content", "text", "memory", "note", "fact", "data", "value")
TIME_NAMES = ("created_at", "created", "timestamp", "date", "time", "ts")
_TAGS = ("agent", "personality", "project", "type", "kind", "category", "user", "user_id")
_RENAMED = {"kind": "type", "category": "type", "user_id": "user"}


class Message(NamedTuple):
    """One message of a conversation.

    Attributes:
        conversation: The id of the conversation, which begins with the name of the source.
        turn: The message. Its `message_id` is the source's own id, so that a second import adds
            nothing. Without `created_at`, it gets the time of the message before it.
        title: The title of the conversation.
        project: The project that the conversation is about.
        session: The conversation in which hooks store the same message, if its name is another one.
    """

    conversation: str
    turn: TurnDraft
    title: str = ""
    project: str | None = None
    session: str = ""


# A `Draft` is a statement worth keeping. Its key, if any, is the source's id for it, which stays
# when the text changes: then the new text becomes a new version.
Item = Message | Draft


def clean(text: object) -> str:
    """Return text without characters that can't be stored and without images and other files in
    base64, which are named instead; empty if it isn't text.
    """
    if not isinstance(text, str):
        return ""
    if ";base64," in text:
        text = _EMBEDDED.sub(r"[\1]", text)
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_UNSTORABLE).strip()


def one_line(text: object, longest: int = 256) -> str:
    """Return text on one line, shortened; empty if it isn't text."""
    line = " ".join(clean(text).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def moment(*values: object) -> datetime | None:
    """Return the first value that is a time: ISO 8601, or a number counted from 1970.

    Seconds, milliseconds and microseconds are distinguished by their size. A time without a zone is
    in UTC.

    Returns:
        None if none is a time since 1990.
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
    """Return an id derived from the content, for a message without an id."""
    text = "\x1f".join("" if part is None else str(part) for part in parts)
    return f"sha:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"


def parse_json(text: object) -> object:
    """Return a JSON value kept as text, such as in a column of a table; None if it isn't JSON."""
    try:
        return json.loads(text) if isinstance(text, str | bytes) else None
    except (ValueError, RecursionError):
        return None


def parse_object(text: object) -> Mapping[str, Any]:
    """Return a JSON object kept as text; empty if it isn't one."""
    return mapping(parse_json(text))


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object; empty if the value isn't one."""
    return value if isinstance(value, dict) else {}


def dicts(value: object) -> list[Mapping[str, object]]:
    """Return the objects in a JSON array; empty if it isn't one."""
    if not isinstance(value, list):
        return []
    return [part for part in value if isinstance(part, dict)]


def blocks_text(content: object) -> list[str]:
    """Return the texts of a message: its content is a text, or a list of blocks with text."""
    if isinstance(content, str):
        return [clean(content)]
    return [clean(block.get("text")) for block in dicts(content)]


def join_texts(texts: Iterable[str]) -> str:
    """Return the texts of a message as one, with a blank line between them."""
    return "\n\n".join(filter(None, texts))


def strings(value: object) -> list[str]:
    """Return the strings in a JSON array; empty if it isn't one."""
    if not isinstance(value, list):
        return []
    return [part for part in value if isinstance(part, str)]


# --- fields


def to_draft(fields: Mapping[str, Any]) -> Draft | None:
    """Return the draft in some fields; None if they have no text.

    Args:
        fields: Values by their names, which may be written in any case.
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
    """Return the tags in some fields: known names, and those under `tags`.

    Tags are an object, an array or a list separated by commas, of words or of `key=value`.
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
    """Return those tags that are valid; a word becomes a tag with the value `true`."""
    tags: dict[str, str] = {}
    for name, value in values.items():
        add_tag(tags, name, value)
    for word in words:
        add_tag(tags, word, "true")
    return tags


def add_tag(tags: dict[str, str], key: object, value: object) -> None:
    """Add a tag, unless its key is there already or one of them is invalid."""
    name = "-".join(str(key).split())
    text = one_line("" if value is None else str(value), validate.MAX_TAG_VALUE)
    if name in tags or not text or len(tags) >= validate.MAX_TAGS // 2:
        return
    try:
        tags |= validate.tags({name: text})
    except InvalidInput:
        return  # another program may use any key
