"""Ids of memories: UUIDv7, so that their order is the order of creation."""

import os
import re
from datetime import datetime

from memories.errors import InvalidInput
from memories.times import to_millis
from memories.validate import shown

MIN_PREFIX = 8
ID_LENGTH = 36
_HEX = re.compile(r"[0-9a-f]{8,32}")
_MAX_MILLIS = (1 << 48) - 1


def new_id(created_at: datetime) -> str:
    """Return a UUIDv7 (RFC 9562, section 5.7): 48 bits of milliseconds, 74 random bits, version and variant.

    Args:
        created_at: The time that it carries; times before 1970 count as 1970.
    """
    millis = min(max(to_millis(created_at), 0), _MAX_MILLIS)
    random = int.from_bytes(os.urandom(10))
    value = millis << 80 | 0x7 << 76 | (random >> 62 & 0xFFF) << 64 | 0b10 << 62 | random & ((1 << 62) - 1)
    return hyphenated(f"{value:032x}")


def parse_id(text: str) -> str:
    """Return an id, or a prefix of one, in its canonical form.

    Raises:
        InvalidInput: It cannot be one.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"a memory id is text, not of type {type(text).__name__}")
    text = text.strip().lower()
    bare = text.replace("-", "")
    if len(text) > ID_LENGTH or not _HEX.fullmatch(bare):
        raise InvalidInput(
            f'"{shown(text)}" is not a memory id; give the whole id, or its first {MIN_PREFIX} or more characters'
        )
    return hyphenated(bare)


def storable(text: str) -> bool:
    """Return whether every store can hold a text: it has no NUL and no half of a character."""
    return "\0" not in text and text.encode("utf-8", "ignore") == text.encode("utf-8", "surrogatepass")


def digest(*parts: str) -> str:
    """Return 32 hexadecimal digits that are the same for the same texts in the same order, and for no others."""
    import hashlib  # 4 ms that most commands do without

    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        made.update(len(data).to_bytes(8, "big") + data)
    return made.hexdigest()


def hyphenated(digits: str) -> str:
    """Return the hex digits of a UUID, or its first ones, with the hyphens in their places."""
    return "-".join(filter(None, (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])))
