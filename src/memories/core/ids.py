"""Ids of memories: UUIDv7, so that their order is the order of creation."""

import os
import re
import threading
from datetime import UTC, datetime

from memories.core.times import from_millis, to_millis
from memories.errors import InvalidInput
from memories.guard.validate import shown

MIN_PREFIX = 8
ID_LENGTH = 36
_HEX = re.compile(r"[0-9a-f]{8,32}")
_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_SHORT_FORM = re.compile(r"(\d{4})(\d{2})(\d{2})-(\d{8})(\d{4})", re.ASCII)
_CUT_SHORT_FORM = re.compile(r"(?:19|20)\d{6}-\d{1,11}", re.ASCII)
_TURN_ID = re.compile(r".+#\d+", re.ASCII)
_DAY_MILLIS = 86_400_000
_LAST_SHORT_MILLIS = 8_000 * 365 * _DAY_MILLIS  # later years have more than four digits
_MAX_MILLIS = (1 << 48) - 1
# The first id in a millisecond is below this, so the next 1,000 ids differ in their first 12 bits.
_FIRST_BELOW = 3 << 72
# Above this, ids increase in small steps, which leaves room for 500 million more.
_COUNT_BELOW = (1 << 74) - (1 << 60)
_REMEMBERED = 10_000  # for imports with old times, the last id of this many milliseconds is kept


class _Counter:
    """Generates the 74 bits after an id's milliseconds; random, but increasing in each millisecond.

    The first 12 bits are a counter, so that ids made together differ in the prefix that people
    type; see RFC 9562, section 6.2. Another process's ids from the same millisecond may sort in
    between.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[int, int] = {}

    def next(self, millis: int) -> int:
        with self._lock:
            last = self._last.get(millis)
            if last is None:
                if len(self._last) >= _REMEMBERED:
                    oldest = next(iter(self._last))
                    del self._last[oldest]
                last = int.from_bytes(os.urandom(10)) % _FIRST_BELOW
            bits = (((last >> 62) + 1) << 62) | int.from_bytes(os.urandom(8)) >> 2
            if bits >= _COUNT_BELOW:
                bits = last + 1 + int.from_bytes(os.urandom(4))
            self._last[millis] = bits
        return bits


_counter = _Counter()
if hasattr(os, "register_at_fork"):  # a thread of the parent may have held the lock
    os.register_at_fork(after_in_child=_counter.reset)


def new_id(created_at: datetime) -> str:
    """Return a new UUIDv7 (RFC 9562, section 5.7): milliseconds, then 74 increasing bits.

    A process's ids from the same millisecond sort in the order of their creation.

    Args:
        created_at: The time of the id; times before 1970 count as 1970.
    """
    millis = _millis(created_at)
    return _uuid(millis, _counter.next(millis))


def same_id(created_at: datetime, seed: str, number: int) -> str:
    """Return a UUIDv7 that depends only on the arguments, for a write that may be repeated.

    Args:
        created_at: The time of the id.
        seed: A text that is unique to the write.
        number: The position among the ids with this time and seed. It determines their order, and
            makes their first 12 bits differ.
    """
    bits = int(digest(seed, str(number)), 16) % (1 << 62)
    first = int(digest(seed), 16) % _FIRST_BELOW >> 62
    return _uuid(_millis(created_at), (first + number) % 4096 << 62 | bits)


def _millis(moment: datetime) -> int:
    return min(max(to_millis(moment), 0), _MAX_MILLIS)


def _uuid(millis: int, bits: int) -> str:
    version, variant = 0x7 << 76, 0b10 << 62
    first_bits, other_bits = (bits >> 62 & 0xFFF) << 64, bits & ((1 << 62) - 1)
    value = millis << 80 | version | first_bits | variant | other_bits
    return hyphenated(f"{value:032x}")


def id_prefix(moment: datetime) -> str:
    """Return the prefix of all ids from a millisecond; later ids sort after it."""
    return hyphenated(f"{_millis(moment):012x}")


def parse_id(text: str) -> str:
    """Return the canonical form of an id, of a prefix, or of a short form (see `short_form`).

    Raises:
        InvalidInput: The text can't be an id.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"a memory id must be text, not {type(text).__name__}")
    given = text.strip()
    text = _expand_short_form(given.lower())
    digits = text.replace("-", "")
    if _TURN_ID.fullmatch(text):
        raise InvalidInput(
            f'"{shown(given)}" is the id of a turn, not of a memory; to read turns, run '
            "memory turns show"
        )
    if _CUT_SHORT_FORM.fullmatch(text):
        raise InvalidInput(f'"{given}" is only the beginning of an id; give the whole id')
    if len(text) > ID_LENGTH or not _HEX.fullmatch(digits):
        raise InvalidInput(
            f'"{shown(given)}" is not a memory id; give the whole id, or its first {MIN_PREFIX} '
            "or more characters"
        )
    return hyphenated(digits)


def short_form(memory_id: str) -> str:
    """Return the short form of an id that is shown to agents, such as `20261122-363123452048`.

    It consists of the UTC day, the millisecond of the day, and a counter. It shows the date, and
    takes 8 tokens instead of 21. Ids from other programs are returned unchanged.
    """
    if _UUID7.fullmatch(memory_id) is None:
        return memory_id
    digits = memory_id.replace("-", "")
    millis, counter = int(digits[:12], 16), int(digits[13:16], 16)
    if millis >= _LAST_SHORT_MILLIS:
        return memory_id
    return f"{from_millis(millis):%Y%m%d}-{millis % _DAY_MILLIS:08}{counter:04}"


def with_short_ids(sentence: str) -> str:
    """Return one of our messages with the short form of each memory id."""
    return _UUID7.sub(lambda match: short_form(match[0]), sentence)


def _expand_short_form(text: str) -> str:
    """Return the id prefix for a short form; return any other text unchanged."""
    match = _SHORT_FORM.fullmatch(text)
    if match is None:
        return text
    year, month, day, millis_of_day, counter = map(int, match.groups())
    try:
        millis = to_millis(datetime(year, month, day, tzinfo=UTC)) + millis_of_day
    except ValueError:
        return text
    if millis < 0 or millis_of_day >= _DAY_MILLIS or counter >= 1 << 12:
        return text
    return hyphenated(f"{millis:012x}7{counter:03x}")


def whole_id(text: str) -> str:
    """Return the canonical form of an id that another program made.

    Raises:
        InvalidInput: The text isn't a complete UUIDv7.
    """
    memory_id = parse_id(text)
    if len(memory_id) != ID_LENGTH or memory_id[14] != "7" or memory_id[19] not in "89ab":
        raise InvalidInput(f'"{shown(text)}" is not a memory id, which must be a UUIDv7')
    return memory_id


def storable(text: str) -> bool:
    """Return whether every store can store a text: it contains no NUL and no lone surrogate."""
    without_surrogates = text.encode("utf-8", "ignore")
    return "\0" not in text and without_surrogates == text.encode("utf-8", "surrogatepass")


def digest(*parts: str) -> str:
    """Return a hash of several texts, in order, as 32 hexadecimal digits."""
    import hashlib  # imported late, since it takes 4 ms

    blake = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        blake.update(len(data).to_bytes(8, "big") + data)
    return blake.hexdigest()


def hyphenated(digits: str) -> str:
    """Return the hex digits of a UUID, or of a prefix of one, with hyphens."""
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(filter(None, parts))
