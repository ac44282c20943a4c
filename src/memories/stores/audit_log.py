"""Pure functions for the audit log: a hash chain of entries for each namespace.

An entry is a record in the collection `log`, in the group `CHAIN`, at the position after the
previous entry. Its text is a JSON array: number, actor, changes and hash. In the first entry of a
chain, the array also contains the salt for conversation digests. A change is an action and its
items. An item is a memory's id with a range of versions, or a conversation's digest with a range of
turns: see `Item`. An entry never contains content, tags, keys or conversation names.

The same collection also records when each memory was reinforced: see `reinforcements_of`.
"""

import binascii  # base64 takes as long to import as the rest of this module
import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from memories.core.times import from_millis, to_millis
from memories.models import Actor
from memories.stores.records import Collection, Filter, Record, Ref

CHAIN = "\x1f"  # the group of all entries; no memory has this id
MAX_ITEMS = 500  # maximum number of items in one entry; the rest go into further entries
_TURNS = "~"  # prefix of a conversation's digest
_NAMED = "="  # prefix of a memory's id that isn't a UUID
_DIGEST_BYTES = 12

Changes = tuple[tuple[str, ...], ...]  # each change is an action followed by its items

# The encoder is created only once, because every change writes an entry.
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class ChainEntry(NamedTuple):
    """An entry in a chain.

    Attributes:
        number: Its number, one more than the previous entry's.
        namespace: The namespace of the chain.
        at: The time at which it was written.
        actor: Who made the changes.
        changes: The changes.
        salt: In the first entry of a chain, the key for conversation digests; empty in other
            entries.
        hash: See `hash_of`.
    """

    number: int
    namespace: str
    at: datetime
    actor: Actor
    changes: Changes
    salt: str
    hash: str


class Item(NamedTuple):
    """The subject of a change: a memory's versions, or a conversation's turns.

    Attributes:
        memory: The id of the memory; None for turns.
        digest: The digest of the conversation; empty for a memory.
        first: The first version or turn.
        last: The last version or turn.
    """

    memory: str | None
    digest: str
    first: int
    last: int


def hash_of(entry: ChainEntry, previous: str) -> str:
    """Return the hash of an entry: the SHA-256 of a JSON array, encoded as UTF-8.

    The array is: previous hash (empty at the beginning of a chain), namespace, number, milliseconds
    since 1970, an array of the actor's channel, user, host and program, changes (arrays of an
    action and its items), salt. The JSON has no spaces between values, and escapes only what JSON
    requires to be escaped.

    Args:
        entry: The entry; its own hash is ignored.
        previous: The hash of the previous entry.
    """
    import hashlib  # takes 4 ms, and most commands don't need it

    parts = [
        previous,
        entry.namespace,
        entry.number,
        to_millis(entry.at),
        entry.actor,
        entry.changes,
        entry.salt,
    ]
    return hashlib.sha256(_to_json(parts).encode("utf-8", "surrogatepass")).hexdigest()


def chain_entry(entry: ChainEntry, head: ChainEntry | None) -> ChainEntry:
    """Give an entry the number and hash that continue the chain after `head`, its last entry."""
    if head is None:
        numbered, previous = entry._replace(number=1), ""
    else:
        numbered, previous = entry._replace(number=head.number + 1), head.hash
    return numbered._replace(hash=hash_of(numbered, previous))


def new_salt() -> str:
    """Return a random salt for a new chain of log entries."""
    return _to_base64(os.urandom(12))


def record_of(entry: ChainEntry, position: int) -> Record:
    """Return the record for an entry."""
    digest = _to_base64(bytes.fromhex(entry.hash))
    parts: list[Any] = [entry.number, entry.actor, entry.changes, digest]
    if entry.salt:
        parts.append(entry.salt)
    ref = Ref(Collection.LOG, entry.namespace, CHAIN, position)
    return Record(ref=ref, text=_to_json(parts), created_at=entry.at)


def parse_entry(record: Record) -> ChainEntry:
    """Return the log entry that a record contains.

    Raises:
        ValueError: The record isn't an entry.
    """
    try:
        number, actor, changes, digest, *salt = json.loads(record.text)
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError("the entry's number is not a whole number, 1 or more")
        return ChainEntry(
            number=number,
            namespace=record.ref.namespace,
            at=from_millis(to_millis(record.created_at)),
            actor=Actor(*map(_check_text, actor)),
            changes=tuple([tuple(map(_check_text, change)) for change in changes]),
            salt=_check_text(salt[0]) if salt else "",
            hash=_from_base64(_check_text(digest)).hex(),
        )
    except (ValueError, TypeError, LookupError, RecursionError) as exc:
        raise ValueError(f"it is not a log entry ({exc})") from exc


def _check_text(part: object) -> str:
    if not isinstance(part, str):
        raise ValueError("part of it is not text")  # noqa: TRY004 - the record is at fault
    return part


def rechain(records: Sequence[Record], last: Sequence[Record]) -> list[Record]:
    """Renumber entries and recompute their hashes, so that they follow the last entry of a chain.

    Args:
        records: The records of the entries.
        last: The record of the last entry in the chain; empty for a new chain.

    Raises:
        ValueError: A record isn't an entry.
    """
    head = parse_entry(last[0]) if last else None
    position = last[0].ref.position if last else 0
    rechained: list[Record] = []
    for record in records:
        head = chain_entry(parse_entry(record), head)
        position += 1
        rechained.append(record_of(head, position))
    return rechained


def make_undone_entry(record: Record) -> Record:
    """Return an entry that marks an earlier entry as undone; that entry's changes failed."""
    entry = parse_entry(record)
    changes = (("undone", f"{_NAMED}{entry.number}.{entry.number}"),)
    return record_of(chain_entry(entry._replace(changes=changes), entry), record.ref.position + 1)


def chain_of(namespace: str) -> Filter:
    """Return the filter that selects a namespace's log entries."""
    return Filter(Collection.LOG, (namespace,), state="any", group=CHAIN)


def reinforcements_of(namespaces: Sequence[str], memory_id: str) -> Filter:
    """Return the filter that selects the records of a memory's reinforcements."""
    return Filter(Collection.LOG, tuple(namespaces), state="any", group=memory_id)


# --- items


def conversation_digest(salt: str, name: str) -> str:
    """Return the digest that stands for a conversation's name in a chain with this salt."""
    import hashlib

    data = name.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(data, key=salt.encode(), digest_size=_DIGEST_BYTES).digest()
    return _to_base64(digest)


def item_of(ref: Ref, last: int, salt: str) -> str:
    """Return the item for the versions or turns from `ref` to the position `last`."""
    first = ref.position
    positions = f".{first}" if first == last else f".{first}-{last}"
    if ref.collection is Collection.HISTORY:
        return f"{_TURNS}{conversation_digest(salt, ref.group)}{positions}"
    packed = _pack_uuid(ref.group)
    if packed is None:
        return f"{_NAMED}{ref.group}{positions}"
    return packed if positions == ".1" else packed + positions


def parse_item(item: str) -> Item:
    """Parse an item of a log entry.

    Raises:
        ValueError: The text isn't an item.
    """
    name, dot, positions = item.rpartition(".")
    if not dot:
        name, positions = item, "1"
    first, _, last = positions.partition("-")
    span = int(first), int(last or first)
    if name.startswith(_TURNS):
        return Item(None, name[1:], *span)
    if name.startswith(_NAMED):
        return Item(name[1:], "", *span)
    return Item(_hyphenate(_from_base64(name)), "", *span)


def to_ranges(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Return ranges of consecutive positions, each as its first and last position."""
    ranges: list[tuple[int, int]] = []
    for position in sorted(set(positions)):
        if ranges and ranges[-1][1] == position - 1:
            ranges[-1] = ranges[-1][0], position
        else:
            ranges.append((position, position))
    return ranges


def split_into_entries(items_by_action: Mapping[str, Sequence[str]]) -> list[Changes]:
    """Divide changes among entries of at most `MAX_ITEMS` items; return each entry's changes."""
    pairs: list[tuple[str, str]] = []
    for action, items in items_by_action.items():
        pairs += [(action, item) for item in items]
    entries: list[Changes] = []
    for start in range(0, len(pairs), MAX_ITEMS):
        by_action: dict[str, list[str]] = {}
        for action, item in pairs[start : start + MAX_ITEMS]:
            by_action.setdefault(action, []).append(item)
        entries.append(tuple((action, *items) for action, items in by_action.items()))
    return entries


def _pack_uuid(name: str) -> str | None:
    """Return a UUID in base64, 22 characters instead of 36; None if the name isn't a UUID."""
    if len(name) != 36:
        return None
    with contextlib.suppress(ValueError):
        packed = bytes.fromhex(name.replace("-", ""))
        if _hyphenate(packed) == name:
            return _to_base64(packed)
    return None


def _hyphenate(data: bytes) -> str:
    digits = data.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _to_base64(data: bytes) -> str:
    text = binascii.b2a_base64(data, newline=False).decode()
    return text.rstrip("=").replace("+", "-").replace("/", "_")


def _from_base64(text: str) -> bytes:
    padding = "=" * (-len(text) % 4)
    return binascii.a2b_base64(text.replace("-", "+").replace("_", "/") + padding)
