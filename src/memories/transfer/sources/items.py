"""Items of a source: messages of conversations, and drafts of memories."""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from memories.models import Draft
from memories.read.turns import TurnDraft

_EARLIEST = datetime(1990, 1, 1, tzinfo=UTC)  # a zero or a count of days is earlier
_MICROSECONDS, _MILLISECONDS = 1e14, 1e11  # numbers from here on count these since 1970
# Control characters except tab and line feed, and halves of characters, which no store keeps.
_UNSTORABLE = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)))
_UNSTORABLE |= dict.fromkeys(range(0xD800, 0xE000))


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
    """Return text without characters that can't be stored; empty if it isn't text."""
    if not isinstance(text, str):
        return ""
    return text.replace("\r\n", "\n").translate(_UNSTORABLE).strip()


def one_line(text: object, longest: int = 256) -> str:
    """Return text on one line, shortened; empty if it isn't text."""
    line = " ".join(clean(text).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def moment(value: object) -> datetime | None:
    """Return a time as other programs write it: ISO 8601, or a number since 1970.

    Seconds, milliseconds and microseconds are distinguished by their size. A time without a zone is
    in UTC.

    Returns:
        None if it isn't a time, or is before 1990.
    """
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
    """Return an id made of the content, for a message without one."""
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


def strings(value: object) -> list[str]:
    """Return the strings in a JSON array; empty if it isn't one."""
    if not isinstance(value, list):
        return []
    return [part for part in value if isinstance(part, str)]
