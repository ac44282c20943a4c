"""Drafts from fields with the names that most programs use, for CSV files and JSON lines."""

import json
from collections.abc import Mapping
from typing import Any

from memories.errors import InvalidInput
from memories.guard import validate
from memories.models import DecayPolicy, Draft
from memories.transfer.sources.items import clean, moment, one_line

TEXT_NAMES = ("content", "text", "memory", "note", "fact", "data", "value")
TIME_NAMES = ("created_at", "created", "timestamp", "date", "time", "ts")
_TAGS = ("agent", "personality", "project", "type", "kind", "category", "user", "user_id")
_RENAMED = {"kind": "type", "category": "type", "user_id": "user"}


def to_draft(fields: Mapping[str, Any]) -> Draft | None:
    """Return the draft in some fields; None if they have no text.

    Args:
        fields: Values by their names, which may be written in any case.
    """
    by_name = {str(name).strip().lower(): value for name, value in fields.items()}
    texts = [clean(by_name.get(name)) for name in TEXT_NAMES]
    times = [moment(by_name.get(name)) for name in TIME_NAMES]
    text = next(filter(None, texts), "")
    if not text:
        return None
    decay = by_name.get("decay_policy") or by_name.get("decay")
    return Draft(
        text,
        tags=to_tags(by_name),
        created_at=next(filter(None, times), None),
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
