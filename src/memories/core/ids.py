"""Ids of memories: UUIDv7, so that their order is the order of creation."""

import os
import re
import threading
from datetime import datetime

from memories.core.times import to_millis
from memories.errors import InvalidInput
from memories.guard.validate import shown

MIN_PREFIX = 8
ID_LENGTH = 36
_HEX = re.compile(r"[0-9a-f]{8,32}")
_MAX_MILLIS = (1 << 48) - 1
_FIRST_BELOW = (
    3 << 72
)  # the first of a millisecond: at least 1,000 more of it differ in their first 12 bits
_COUNT_BELOW = (1 << 74) - (
    1 << 60
)  # and those after them are close together: room for 500 million
_REMEMBERED = 10_000  # milliseconds whose last id is known, for imports that carry old times


class _Counter:
    """The 74 bits of the ids of one process that follow the milliseconds: random, but rising within
    each of them.

    The first 12 of them count, so that ids of a bulk differ in the beginning that people write; see
    RFC 9562, section 6.2. Ids of other processes in the same millisecond fall anywhere between.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[int, int] = {}

    def next(self, millis: int) -> int:
        with self._lock:
            last = self._last.get(millis)
            if last is None:
                if (
                    len(self._last) >= _REMEMBERED
                ):  # the first to be forgotten is the one that was used first
                    del self._last[next(iter(self._last))]
                last = int.from_bytes(os.urandom(10)) % _FIRST_BELOW
            bits = (((last >> 62) + 1) << 62) | int.from_bytes(os.urandom(8)) >> 2
            if bits >= _COUNT_BELOW:
                bits = last + 1 + int.from_bytes(os.urandom(4))
            self._last[millis] = bits
        return bits


_counter = _Counter()
if hasattr(os, "register_at_fork"):  # a thread of the parent may have held the lock

    def _renew() -> None:
        global _counter  # noqa: PLW0603 - a child is another process
        _counter = _Counter()

    os.register_at_fork(after_in_child=_renew)


def new_id(created_at: datetime) -> str:
    """Return a UUIDv7 (RFC 9562, section 5.7): 48 bits of milliseconds, 74 bits that rise, version
    and variant.

    Ids that one process makes for the same millisecond are in the order in which they were made.

    Args:
        created_at: The time that it carries; times before 1970 count as 1970.
    """
    millis = min(max(to_millis(created_at), 0), _MAX_MILLIS)
    return _uuid(millis, _counter.next(millis))


def same_id(created_at: datetime, seed: str, number: int) -> str:
    """Return a UUIDv7 that is the same whenever it is made, for a memory that may have to be
    written again.

    Args:
        created_at: The time that it carries.
        seed: Nobody else has it.
        number: Which one of those with this time and seed: their order, and what lets their first
            12 bits differ.
    """
    bits = int(digest(seed, str(number)), 16) % (1 << 62)
    first = int(digest(seed), 16) % _FIRST_BELOW >> 62
    return _uuid(
        min(max(to_millis(created_at), 0), _MAX_MILLIS), (first + number) % 4096 << 62 | bits
    )


def _uuid(millis: int, bits: int) -> str:
    value = (
        millis << 80 | 0x7 << 76 | (bits >> 62 & 0xFFF) << 64 | 0b10 << 62 | bits & ((1 << 62) - 1)
    )
    return hyphenated(f"{value:032x}")


def id_prefix(moment: datetime) -> str:
    """Return how the ids of a millisecond begin; those of later ones are greater."""
    return hyphenated(f"{min(max(to_millis(moment), 0), _MAX_MILLIS):012x}")


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


def whole_id(text: str) -> str:
    """Return an id that was made elsewhere, in its canonical form.

    Raises:
        InvalidInput: It is no whole UUIDv7.
    """
    found = parse_id(text)
    if len(found) != ID_LENGTH or found[14] != "7" or found[19] not in "89ab":
        raise InvalidInput(f'"{shown(text)}" is no UUIDv7, which the id of a memory has to be')
    return found


def storable(text: str) -> bool:
    """Return whether every store can hold a text: it has no NUL and no half of a character."""
    return "\0" not in text and text.encode("utf-8", "ignore") == text.encode(
        "utf-8", "surrogatepass"
    )


def digest(*parts: str) -> str:
    """Return 32 hexadecimal digits that are the same for the same texts in the same order, and for
    no others.
    """
    import hashlib  # 4 ms that most commands do without

    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        made.update(len(data).to_bytes(8, "big") + data)
    return made.hexdigest()


def hyphenated(digits: str) -> str:
    """Return the hex digits of a UUID, or its first ones, with the hyphens in their places."""
    return "-".join(
        filter(None, (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    )
