"""JSON as PostgreSQL keeps it: numbers stay what they were, and what it can't hold is refused before it is sent."""

import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memories.errors import StoreError

if TYPE_CHECKING:
    from psycopg.types.json import Jsonb

_LEAST_EXPONENT = 1e16  # from here on Python writes a float with an exponent, and PostgreSQL returns it without a point
_MARKED = re.compile(r'"\\u0000(-?\d+\.0)"')


def jsonb(value: Mapping[str, Any]) -> "Jsonb":
    """Return labels or fields as a value for a statement.

    Raises:
        StoreError: PostgreSQL can't hold it.
        UnicodeError: A text in it is not valid Unicode.
    """
    from psycopg.types.json import Jsonb

    written = json.dumps(_sendable(value), ensure_ascii=False)
    return Jsonb(_MARKED.sub(r"\1", written).encode(), dumps=bytes)


def _sendable(value: Any) -> Any:
    """Return the value with its large floats as texts that begin with a NUL, which no other text does."""
    if isinstance(value, str):
        if "\0" in value:
            raise StoreError("a label or a field has the character NUL, which PostgreSQL can't hold; leave it out")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise StoreError(f"a field is {value}, and PostgreSQL can't hold it: a number must be finite")
        return value if abs(value) < _LEAST_EXPONENT else f"\0{value:.1f}"
    if isinstance(value, Mapping):
        return {_sendable(name): _sendable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_sendable(part) for part in value]
    return value
