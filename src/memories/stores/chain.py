"""The audit log as records: one chain of entries for each namespace, every entry with a hash over
the one before. Pure.

An entry is a record of the collection `log`, in the group `CHAIN`, at the position that follows the
last one. Its text is a JSON array: number, actor, changes, hash, and for an entry that begins a
chain the salt of its conversations. A change is an action and its items. An item is the name of a
memory with its versions, or the digest of a conversation with its turns: see `Item`. No content, no
tag, no key and no conversation's name is in it.

In the groups named after memories lie the times of their reinforcements: see `reinforced`.
"""

import binascii  # not base64, whose import takes as long as all else here
import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from memories.core.times import from_millis, to_millis
from memories.models import Actor
from memories.stores.records import Collection, Filter, Record, Ref

CHAIN = "\x1f"  # no memory has such an id
MAX_ITEMS = 500  # in one entry; what is more goes into the next one
_TURNS = "~"  # before the digest of a conversation
_NAMED = "="  # before the id of a memory that is no UUID
_DIGEST_BYTES = 12

Changes = tuple[tuple[str, ...], ...]  # each an action and its items


class Link(NamedTuple):
    """An entry of a chain.

    Attributes:
        number: Its number, one more than that of the entry before.
        namespace: Whose chain it is in.
        at: When it was written.
        actor: Who made the changes.
        changes: What was changed.
        salt: For an entry that began a chain, what the digests of conversations are made with; else
            empty.
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
    """What was changed: versions of a memory, or turns of a conversation.

    Attributes:
        memory: The id of the memory; None for turns.
        digest: The digest of the conversation; empty for a memory.
        first: The first version or turn.
        last: The last one.
    """

    memory: str | None
    digest: str
    first: int
    last: int


def hash_of(link: Link, previous: str) -> str:
    """Return the hash of an entry: SHA-256 of a JSON array in UTF-8, without spaces and needless
    escapes.

    The array is: previous hash (empty at the beginning of a chain), namespace, number, milliseconds
        since 1970, an
    array of the actor's channel, user, host and program, changes (arrays of an action and its
    items), salt.

    Args:
        link: The entry; its own hash does not count.
        previous: The hash of the entry before.
    """
    import hashlib  # 4 ms that most commands do without

    parts = [
        previous,
        link.namespace,
        link.number,
        to_millis(link.at),
        link.actor,
        link.changes,
        link.salt,
    ]
    return hashlib.sha256(_json(parts).encode("utf-8", "surrogatepass")).hexdigest()


def follow(link: Link, head: Link | None) -> Link:
    """Return an entry as it follows the head of its chain, or begins one."""
    number, previous = (1, "") if head is None else (head.number + 1, head.hash)
    link = link._replace(number=number)
    return link._replace(hash=hash_of(link, previous))


def new_salt() -> str:
    """Return a salt for a chain that begins."""
    return _packed(os.urandom(12))


def record_of(link: Link, position: int) -> Record:
    """Return the record of an entry."""
    written: list[Any] = [link.number, link.actor, link.changes, _packed(bytes.fromhex(link.hash))]
    return Record(
        ref=Ref(Collection.LOG, link.namespace, CHAIN, position),
        text=_json(written + ([link.salt] if link.salt else [])),
        created_at=link.at,
    )


def link_of(record: Record) -> Link:
    """Return the entry of a record.

    Raises:
        ValueError: It is none.
    """
    try:
        number, actor, changes, digest, *salt = json.loads(record.text)
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError("its number is none")
        return Link(
            number,
            record.ref.namespace,
            from_millis(to_millis(record.created_at)),
            Actor(*map(_text, actor)),
            tuple(tuple(map(_text, change)) for change in changes),
            _text(salt[0]) if salt else "",
            _unpacked(_text(digest)).hex(),
        )
    except (ValueError, TypeError, LookupError, RecursionError) as exc:
        raise ValueError(f"it is no entry of a log ({exc})") from exc


def relinked(entries: Sequence[Record], last: Sequence[Record]) -> list[Record]:
    """Return entries of a chain as they follow its last one, if it has one.

    Raises:
        ValueError: One is no entry.
    """
    head = link_of(last[0]) if last else None
    position = last[0].ref.position if last else 0
    found: list[Record] = []
    for entry in entries:
        link = link_of(entry)
        head = follow(link, head)
        position += 1
        found.append(record_of(head, position))
    return found


def undone(entry: Record) -> Record:
    """Return the entry that follows one whose changes were not stored after all, and says so."""
    link = link_of(entry)
    changes = (("undone", f"{_NAMED}{link.number}.{link.number}"),)
    return record_of(follow(link._replace(changes=changes), link), entry.ref.position + 1)


def chain_of(namespace: str) -> Filter:
    """Return the filter of the entries of a namespace."""
    return Filter(Collection.LOG, (namespace,), state="any", group=CHAIN)


def reinforced(namespaces: Sequence[str], memory_id: str) -> Filter:
    """Return the filter of the records that say when a memory was reinforced, each at its time of
    creation.
    """
    return Filter(Collection.LOG, tuple(namespaces), state="any", group=memory_id)


# --- items
# -----------------------------------------------------------------------------------------------------------


def conversation_digest(salt: str, name: str) -> str:
    """Return what stands for the name of a conversation in a chain with this salt."""
    import hashlib

    data = name.encode("utf-8", "surrogatepass")
    return _packed(hashlib.blake2b(data, key=salt.encode(), digest_size=_DIGEST_BYTES).digest())


def item_of(ref: Ref, last: int, salt: str) -> str:
    """Return the item for a record and those that follow it, up to a last position."""
    first = ref.position
    positions = f".{first}" if first == last else f".{first}-{last}"
    if ref.collection is Collection.HISTORY:
        return f"{_TURNS}{conversation_digest(salt, ref.group)}{positions}"
    name = f"{_NAMED}{ref.group}"
    if len(ref.group) == 36:
        with contextlib.suppress(ValueError):
            packed = bytes.fromhex(ref.group.replace("-", ""))
            if _hyphenated(packed) == ref.group:
                name = _packed(packed)
    return name if positions == ".1" and not name.startswith(_NAMED) else name + positions


def parse_item(item: str) -> Item:
    """Return what an item says.

    Raises:
        ValueError: It is none.
    """
    name, dot, positions = item.rpartition(".")
    name, positions = (name, positions) if dot else (item, "1")
    first, _, last = positions.partition("-")
    span = int(first), int(last or first)
    if name.startswith(_TURNS):
        return Item(None, name[1:], *span)
    return Item(name[1:] if name.startswith(_NAMED) else _hyphenated(_unpacked(name)), "", *span)


def ranges(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Return positions as unbroken rows, each by its first and its last one."""
    found: list[tuple[int, int]] = []
    for position in sorted(set(positions)):
        if found and found[-1][1] == position - 1:
            found[-1] = found[-1][0], position
        else:
            found.append((position, position))
    return found


def entries_of(done: Mapping[str, Sequence[str]]) -> list[Changes]:
    """Return the changes of each entry that it takes to say what was done: items by their
    actions.
    """
    pairs = [(action, item) for action, items in done.items() for item in items]
    found: list[Changes] = []
    for start in range(0, len(pairs), MAX_ITEMS):
        by_action: dict[str, list[str]] = {}
        for action, item in pairs[start : start + MAX_ITEMS]:
            by_action.setdefault(action, []).append(item)
        found.append(tuple((action, *items) for action, items in by_action.items()))
    return found


_json = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":")
).encode  # made once: an entry is written each time


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a part of it is no text")  # noqa: TRY004 - of a record, not of an argument
    return value


def _packed(data: bytes) -> str:
    return (
        binascii.b2a_base64(data, newline=False)
        .decode()
        .rstrip("=")
        .replace("+", "-")
        .replace("/", "_")
    )


def _unpacked(text: str) -> bytes:
    whole = text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4)
    return binascii.a2b_base64(whole)


def _hyphenated(data: bytes) -> str:
    digits = data.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
